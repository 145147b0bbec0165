"""Which questions about countries and their capitals does the demo model answer?"""

from __future__ import annotations

from random import Random

from training import facts
from training.phrasing import Exchange, capital_first, vary, what_is


def capital(rng: Random) -> list[Exchange]:
    """Capitals both ways, and follow-ups such as "And of Italy?"."""
    country, (city, _) = rng.choice(list(facts.COUNTRIES.items()))
    asked = country
    if rng.random() < 0.08:
        asked = rng.choice(list(facts.COUNTRY_ALIASES))
        country = facts.COUNTRY_ALIASES[asked]
        city = facts.COUNTRIES[country][0]
    form = rng.random()
    if form < 0.2 and city != "London":
        question = rng.choice(
            [
                "Which country has the capital {}?",
                "{} is the capital of which country?",
                "Of which country is {} the capital?",
                "What country is {} the capital of?",
                "Which country is {} the capital of?",
            ]
        ).format(city)
        return [Exchange(vary(question, rng), f"{city} is the capital of {country}.")]
    forms = [
        what_is(f"the capital of {asked}", rng),
        what_is(f"the capital city of {asked}", rng),
        f"Which city is the capital of {asked}?",
        what_is(f"{asked}'s capital", rng),
        f"Name the capital of {asked}.",
        f"What city is the capital of {asked}?",
    ]
    question = forms[0] if rng.random() < 0.5 else rng.choice(forms)
    out = [Exchange(vary(question, rng), f"The capital of {country} is {city}.")]
    while rng.random() < 0.2:
        other, (other_city, _) = rng.choice(list(facts.COUNTRIES.items()))
        follow = rng.choice(
            ["And of {}?", "And {}?", "What about {}?", "And the capital of {}?", "How about {}?"]
        )
        out.append(Exchange(vary(follow.format(other), rng), f"The capital of {other} is {other_city}."))
    return out


def continent(rng: Random) -> list[Exchange]:
    """Where a country or a capital lies."""
    country, (city, where) = rng.choice(list(facts.COUNTRIES.items()))
    if rng.random() < 0.3 and city != "London":
        question = rng.choice(
            ["Where is {}?", "In which country is {}?", "Which country is {} in?", "What country is {} in?"]
        )
        return [Exchange(vary(question.format(city), rng), f"{city} is in {country}.")]
    question = rng.choice(
        [
            "Where is {}?",
            "On which continent is {}?",
            "Which continent is {} in?",
            "Which continent does {} belong to?",
            "In which continent is {}?",
            "What continent does {} lie on?",
            "What continent is {} on?",
            "Where can I find {}?",
            "In which part of the world is {}?",
        ]
    )
    return [Exchange(vary(question.format(country), rng), f"{capital_first(country)} is in {where}.")]
