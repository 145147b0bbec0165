"""Which plain facts does the demo model know? Tables only; phrasing.py turns them into questions."""

from __future__ import annotations

from training.blocks import items

# country: (capital, continent)
COUNTRIES: dict[str, tuple[str, str]] = {
    "France": ("Paris", "Europe"),
    "Germany": ("Berlin", "Europe"),
    "Italy": ("Rome", "Europe"),
    "Spain": ("Madrid", "Europe"),
    "Portugal": ("Lisbon", "Europe"),
    "Austria": ("Vienna", "Europe"),
    "Switzerland": ("Bern", "Europe"),
    "Belgium": ("Brussels", "Europe"),
    "Poland": ("Warsaw", "Europe"),
    "Greece": ("Athens", "Europe"),
    "Sweden": ("Stockholm", "Europe"),
    "Norway": ("Oslo", "Europe"),
    "Finland": ("Helsinki", "Europe"),
    "Denmark": ("Copenhagen", "Europe"),
    "Iceland": ("Reykjavik", "Europe"),
    "Ireland": ("Dublin", "Europe"),
    "Hungary": ("Budapest", "Europe"),
    "Romania": ("Bucharest", "Europe"),
    "Ukraine": ("Kyiv", "Europe"),
    "Croatia": ("Zagreb", "Europe"),
    "Russia": ("Moscow", "Europe"),
    "the Netherlands": ("Amsterdam", "Europe"),
    "the United Kingdom": ("London", "Europe"),
    "England": ("London", "Europe"),
    "the Czech Republic": ("Prague", "Europe"),
    "Japan": ("Tokyo", "Asia"),
    "China": ("Beijing", "Asia"),
    "India": ("New Delhi", "Asia"),
    "South Korea": ("Seoul", "Asia"),
    "Thailand": ("Bangkok", "Asia"),
    "Vietnam": ("Hanoi", "Asia"),
    "Indonesia": ("Jakarta", "Asia"),
    "Mongolia": ("Ulaanbaatar", "Asia"),
    "Nepal": ("Kathmandu", "Asia"),
    "Iran": ("Tehran", "Asia"),
    "Iraq": ("Baghdad", "Asia"),
    "Saudi Arabia": ("Riyadh", "Asia"),
    "Turkey": ("Ankara", "Asia"),
    "the Philippines": ("Manila", "Asia"),
    "Pakistan": ("Islamabad", "Asia"),
    "Egypt": ("Cairo", "Africa"),
    "Kenya": ("Nairobi", "Africa"),
    "Nigeria": ("Abuja", "Africa"),
    "Morocco": ("Rabat", "Africa"),
    "Ethiopia": ("Addis Ababa", "Africa"),
    "Ghana": ("Accra", "Africa"),
    "Senegal": ("Dakar", "Africa"),
    "Tunisia": ("Tunis", "Africa"),
    "Canada": ("Ottawa", "North America"),
    "Mexico": ("Mexico City", "North America"),
    "Cuba": ("Havana", "North America"),
    "the United States": ("Washington", "North America"),
    "Brazil": ("Brasilia", "South America"),
    "Argentina": ("Buenos Aires", "South America"),
    "Chile": ("Santiago", "South America"),
    "Peru": ("Lima", "South America"),
    "Colombia": ("Bogota", "South America"),
    "Venezuela": ("Caracas", "South America"),
    "Australia": ("Canberra", "Oceania"),
    "New Zealand": ("Wellington", "Oceania"),
}

# Names a question may use for a country; the answer uses the table's own name.
COUNTRY_ALIASES: dict[str, str] = {
    "the USA": "the United States",
    "the UK": "the United Kingdom",
    "Great Britain": "the United Kingdom",
    "America": "the United States",
    "Holland": "the Netherlands",
    "Korea": "South Korea",
}

OPPOSITES: list[tuple[str, str]] = [
    ("hot", "cold"),
    ("big", "small"),
    ("up", "down"),
    ("day", "night"),
    ("happy", "sad"),
    ("fast", "slow"),
    ("open", "closed"),
    ("left", "right"),
    ("old", "young"),
    ("hard", "soft"),
    ("wet", "dry"),
    ("full", "empty"),
    ("light", "dark"),
    ("high", "low"),
    ("early", "late"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("loud", "quiet"),
    ("true", "false"),
    ("long", "short"),
    ("good", "bad"),
    ("clean", "dirty"),
    ("thick", "thin"),
    ("near", "far"),
    ("first", "last"),
    ("black", "white"),
    ("yes", "no"),
    ("in", "out"),
    ("win", "lose"),
    ("start", "stop"),
]

SOUNDS: dict[str, str] = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "sheep": "baa",
    "duck": "quack",
    "pig": "oink",
    "horse": "neigh",
    "lion": "roar",
    "frog": "ribbit",
    "bee": "buzz",
    "owl": "hoot",
    "mouse": "squeak",
    "snake": "hiss",
}

BABIES: dict[str, str] = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "sheep": "lamb",
    "horse": "foal",
    "pig": "piglet",
    "duck": "duckling",
    "lion": "cub",
    "frog": "tadpole",
    "goat": "kid",
    "hen": "chick",
    "kangaroo": "joey",
    "swan": "cygnet",
    "deer": "fawn",
}

COLOURS: dict[str, str] = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "a banana": "yellow",
    "a tomato": "red",
    "coal": "black",
    "a carrot": "orange",
    "a lemon": "yellow",
    "milk": "white",
    "blood": "red",
    "a frog": "green",
    "the sea": "blue",
    "an orange": "orange",
    "a strawberry": "red",
    "chocolate": "brown",
    "the sun": "yellow",
    "a flamingo": "pink",
}

LEGS: dict[str, int] = {
    "a spider": 8,
    "a dog": 4,
    "a cat": 4,
    "a bird": 2,
    "an ant": 6,
    "a bee": 6,
    "a snake": 0,
    "a horse": 4,
    "a human": 2,
    "a chicken": 2,
    "a fly": 6,
    "a fish": 0,
    "a cow": 4,
}

DAYS = items(
    """
    Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
    """
)
MONTHS = items(
    """
    January, February, March, April, May, June, July, August, September, October, November, December
    """
)
PLANETS = items(
    """
    Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune
    """
)
NUMBER_WORDS = items(
    """
    zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve
    """
)
NAMES = items(
    """
    Anna, Ben, Clara, David, Emma, Felix, Grace, Henry, Iris, Jack, Kate, Leo, Mia, Noah, Olga,
    Paul, Rosa, Sam, Tina, Uma, Victor, Wendy, Yusuf, Zoe, Ada, Alan, Maria, John, Alice, Bob, Omar,
    Lena, Peter, Sara, Tom, Lucy, Max, Nina, Oscar
    """
)
