"""What JSON does the demo model write? On request, in the words of the request or in those of a schema."""

from __future__ import annotations

import json
from random import Random

from training import facts
from training.phrasing import Exchange, vary
from training.tools import values
from training.tools.schema import COMPACT

HEADS = [
    "Give me a JSON object with {}.",
    "Give me {} as JSON.",
    "Write a JSON object with {}.",
    "Return {} as JSON.",
    "Answer in JSON: {}.",
    "Make a JSON object with {}.",
    "I need JSON with {}.",
    "Show me {} as a JSON object.",
    "Give me JSON with {}.",
    "Reply with a JSON object with {}.",
    "Create JSON for {}.",
]
JOBS = ["teacher", "doctor", "cook", "painter", "farmer", "nurse", "writer", "driver", "baker", "pilot"]


def dumps(value: object, rng: Random) -> str:
    """Return JSON, mostly with spaces; without them, as answers are that a schema holds, now and then."""
    return json.dumps(value, separators=COMPACT if rng.random() < 0.3 else None)


def json_answer(rng: Random) -> list[Exchange]:
    """Short JSON answers with fixed keys per subject."""
    kind = rng.randrange(6)
    if kind <= 1:
        country, (city, _) = rng.choice(list(facts.COUNTRIES.items()))
        asked = rng.choice(
            [f"the capital of {country}", f"the capital of {country}", f"{country} and its capital"]
        )
        value: object = {"country": country.removeprefix("the "), "capital": city}
    elif kind == 2:
        left, right = rng.randint(0, 20), rng.randint(0, 20)
        asked = rng.choice([f"the sum of {left} and {right}", f"{left} plus {right}"])
        value = {"a": left, "b": right, "sum": left + right}
    elif kind == 3:
        name, age = rng.choice(facts.NAMES), rng.randint(5, 90)
        asked = rng.choice(
            [
                f"the name {name} and the age {age}",
                f"name {name} and age {age}",
                f"a person called {name} who is {age} years old",
            ]
        )
        value = {"name": name, "age": age}
    elif kind == 4:
        thing, colour = rng.choice(list(facts.COLOURS.items()))
        asked = f"the colour of {thing}"
        value = {"thing": thing.split(" ", 1)[-1], "colour": colour}
    else:
        asked, value = rng.choice(
            [
                ("the days of the week", {"days": facts.DAYS}),
                ("the planets", {"planets": facts.PLANETS}),
                ("the months", {"months": facts.MONTHS}),
            ]
        )
    return [Exchange(vary(rng.choice(HEADS).format(asked), rng), dumps(value, rng))]


def person(rng: Random) -> tuple[str, dict[str, object]]:
    """Return a sentence or two about a person, and what they say."""
    name, age, city, job = values.person(rng), rng.randint(3, 99), values.city(rng), rng.choice(JOBS)
    text, held = rng.choice(
        [
            (f"{name} is {age} years old and lives in {city}.", ["name", "age", "city"]),
            (f"{name} lives in {city} and is {age} years old.", ["name", "city", "age"]),
            (f"{name} is {age} years old.", ["name", "age"]),
            (f"My friend {name} is {age}.", ["name", "age"]),
            (f"{name} from {city} is {age} years old.", ["name", "city", "age"]),
            (f"{name} is a {job} in {city}.", ["name", "job", "city"]),
            (f"My name is {name}. I am {age} and I live in {city}.", ["name", "age", "city"]),
            (f"{name}, {age}, {job}", ["name", "age", "job"]),
            (
                f"{name} is a {job}. {name} is {age} years old and lives in {city}.",
                ["name", "job", "age", "city"],
            ),
        ]
    )
    all_values: dict[str, object] = {"name": name, "age": age, "city": city, "job": job}
    return text, {key: all_values[key] for key in held}


def thing(rng: Random) -> tuple[str, dict[str, object]]:
    """Return a sentence about something to buy or an order, and what it says."""
    item, price, number = rng.choice(values.NOUNS), rng.randint(1, 999), rng.randint(1, 99)
    currency = rng.choice(values.CURRENCIES)
    return rng.choice(
        [
            (
                f"{number} {item} cost {price} {currency}.",
                {"number": number, "item": item, "price": price, "currency": currency},
            ),
            (f"I want {number} {item}.", {"number": number, "item": item}),
            (f"The {item} cost {price} {currency}.", {"item": item, "price": price, "currency": currency}),
            (f"Order {price} has {number} {item}.", {"order": price, "number": number, "item": item}),
        ]
    )


def listed(names: list[str]) -> str:
    """Return names as a list in words."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def schema_of(value: dict[str, object]) -> str:
    """Return a JSON schema that an object is valid for, as a user would paste it."""
    kinds = {key: {"type": "integer" if isinstance(part, int) else "string"} for key, part in value.items()}
    return json.dumps({"type": "object", "properties": kinds, "required": list(value)})


def extraction(rng: Random) -> list[Exchange]:
    """Read values out of a sentence, under the keys that the request or a pasted schema names, in its order.

    Without named keys the order is any, since a schema that the model does not see may want any.
    """
    text, value = (person if rng.random() < 0.7 else thing)(rng)
    names = rng.sample(list(value), len(value) if rng.random() < 0.6 else rng.randint(1, len(value)))
    value = {name: value[name] for name in names}
    ask = rng.choice(
        [
            f"{text} Give me the {listed(names)} as JSON.",
            f"{text} Write JSON with the keys {listed(names)}.",
            f"Give me {listed(names)} as JSON: {text}",
            f"{text}\nReturn {listed(names)} as a JSON object.",
            f"Extract {listed(names)} as JSON: {text}",
            f"{text}\nAnswer as JSON with this schema: {schema_of(value)}",
            f"Answer with JSON of the schema {schema_of(value)}\n{text}",
            f"{text} As JSON, please.",
            f"Extract the data as JSON: {text}",
            f"Give me this as JSON: {text}",
        ]
    )
    return [Exchange(ask, dumps(value, rng))]
