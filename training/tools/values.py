"""Which values do tools take? Lists and combinations of them, with invented words among them."""

from __future__ import annotations

from random import Random

from training import facts
from training.blocks import items
from training.copying import WORDS
from training.unknown import invented

CITIES = sorted({city for city, _ in facts.COUNTRIES.values()}) + items(
    """
    New York, Boston, Chicago, Dallas, Denver, Miami, Seattle, Toronto, Sydney, Melbourne, Munich,
    Hamburg, Cologne, Milan, Naples, Venice, Turin, Lyon, Nice, Barcelona, Seville, Porto, Zurich,
    Geneva, Basel, Salzburg, Krakow, Oxford, York, Glasgow, Mumbai, Shanghai, Osaka, Kyoto, Dubai,
    Lagos, Istanbul, Antwerp, Rotterdam, Bergen
    """
)
VERBS = items("buy, find, clean, paint, move, wash, fix, sell, order, take, bring, check, return, pack")
THINGS = items(
    """
    milk, bread, the car, the house, a book, the window, apples, the bike, flowers, the table, coffee,
    a ticket, the keys, a lamp, the garden, the shoes, a cake, eggs, the door, the boat, paper, tea
    """
)
ERRANDS = items(
    """
    call mum, feed the cat, go to bed, walk the dog, pay the rent, water the plants, read the mail,
    call the bank, visit grandma, do the homework, cook dinner, leave the office
    """
)
NOTES = items(
    """
    I am late, see you soon, good luck, the train is late, dinner is ready, call me, we won, thank you,
    the meeting is over, happy birthday, I am at home, come here, wait for me, it works, no problem,
    the door is open, I found the keys, good morning, we are ready, the test is green
    """
)
ADJECTIVES = items(
    "old, red, cheap, small, green, fast, new, blue, good, big, quiet, little, famous, simple, wild, free"
)
NOUNS = items(
    """
    cars, houses, dogs, books, birds, trains, films, songs, shoes, hotels, lamps, plants, games, boats,
    cakes, phones, tables, horses, rivers, recipes, tents, maps, chairs, museums
    """
)
CURRENCIES = items("EUR, USD, GBP, CHF, JPY, SEK, NOK, CAD, AUD, INR")


def city(rng: Random) -> str:
    """Return a city, now and then an invented one, so that it has to be read and not guessed."""
    return invented(rng).capitalize() if rng.random() < 0.15 else rng.choice(CITIES)


def person(rng: Random) -> str:
    """Return a first name, now and then an invented one."""
    return invented(rng).capitalize() if rng.random() < 0.15 else rng.choice(facts.NAMES)


def errand(rng: Random) -> str:
    """Return something to be reminded of."""
    if rng.random() < 0.25:
        return rng.choice(ERRANDS)
    return f"{rng.choice(VERBS)} {rng.choice(THINGS)}"


def note(rng: Random) -> str:
    """Return a short text to send to someone."""
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NOTES)
    if kind < 0.8:
        return f"please {errand(rng)}"
    return " ".join(rng.sample(WORDS, rng.choice([1, 2, 3])))


def subject(rng: Random) -> str:
    """Return something to search for."""
    kind = rng.random()
    if kind < 0.45:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind < 0.65:
        return f"{rng.choice(NOUNS)} in {rng.choice(CITIES)}"
    if kind < 0.8:
        return rng.choice(NOUNS)
    return f"{invented(rng)} {rng.choice(NOUNS)}" if kind < 0.9 else invented(rng)


def number(rng: Random) -> int:
    """Return a whole number of one to three digits."""
    return rng.randint(*rng.choice([(2, 9), (10, 99), (10, 99), (100, 999)]))


def hour(rng: Random) -> str:
    """Return a time of day such as 7:30."""
    return f"{rng.randint(1, 23)}:{rng.choice(['00', '15', '30', '45', f'{rng.randint(0, 59):02d}'])}"
