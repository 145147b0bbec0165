"""Which tools look something up? The weather, the time, pages of the web, orders."""

from __future__ import annotations

import json
from random import Random

from training.tools import values
from training.tools.schema import Use, call, keys, make_tool

CONDITIONS = ["sunny", "rainy", "cloudy", "windy", "snowy", "foggy"]
STATES = ["shipped", "delivered", "paid", "waiting", "lost", "packed"]


def count(rng: Random) -> int:
    """Return how many things are asked for at once: mostly one, now and then two."""
    return 2 if rng.random() < 0.22 else 1


def weather(rng: Random) -> Use:
    """Ask for the weather of one or two cities."""
    name = rng.choice(["get_weather", "get_weather", "get_current_weather", "weather", "check_weather"])
    (key,) = keys(rng, "city location place city location town")
    about = rng.choice(["Get the weather of a city.", "Get the current weather", "Returns the weather"])
    tool = make_tool(name, about, {key: "string"}, rng)
    cities = [values.city(rng) for _ in range(count(rng))]
    question = rng.choice(
        [
            "What is the weather in {}?",
            "What's the weather like in {}?",
            "How is the weather in {}?",
            "Tell me the weather in {}.",
            "Is it sunny in {}?",
            "Weather in {}?",
            "What is the weather like in {} today?",
            "Get the weather for {}.",
            "Is it raining in {}?",
            "Is it cold in {} today?",
            "Check the weather in {}.",
            "Show me the weather of {}.",
            "Do I need an umbrella in {}?",
            "How warm is it in {}?",
        ]
    ).format(" and ".join(cities))
    results, parts = [], []
    for city in cities:
        degrees, sky = rng.randint(-9, 35), rng.choice(CONDITIONS)
        result: dict[str, object] = {"temperature": degrees, "condition": sky}
        results.append(json.dumps(rng.choice([{key: city, **result}, result])))
        parts.append(f"It is {sky} and {degrees} degrees in {city}.")
    return Use(tool, question, [call(name, {key: city}) for city in cities], results, " ".join(parts))


def clock(rng: Random) -> Use:
    """Ask for the time in one or two cities."""
    name = rng.choice(["get_time", "get_time", "get_current_time", "clock", "time_in"])
    (key,) = keys(rng, "city location place city town")
    about = rng.choice(["Get the time in a city.", "Get the current time"])
    tool = make_tool(name, about, {key: "string"}, rng)
    cities = [values.city(rng) for _ in range(count(rng))]
    question = rng.choice(
        [
            "What time is it in {}?",
            "Tell me the time in {}.",
            "What is the time in {}?",
            "What's the time in {}?",
            "How late is it in {}?",
            "Current time in {}?",
            "Give me the time in {}.",
            "Which time is it in {} now?",
            "Time in {}?",
        ]
    ).format(" and ".join(cities))
    times = [f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}" for _ in cities]
    results = [rng.choice([json.dumps({"time": now}), now]) for now in times]
    answer = " ".join(f"It is {now} in {city}." for now, city in zip(times, cities, strict=True))
    return Use(tool, question, [call(name, {key: city}) for city in cities], results, answer)


def search(rng: Random) -> Use:
    """Search for something; the answer repeats the title that was found."""
    name = rng.choice(["search", "search", "web_search", "search_web", "find"])
    (key,) = keys(rng, "query q text term topic")
    tool = make_tool(name, rng.choice(["Search the web.", "Find pages"]), {key: "string"}, rng)
    subject = values.subject(rng)
    question = rng.choice(
        [
            "Search for {}.",
            "Search the web for {}.",
            "Look up {}.",
            "Find {}.",
            "Find pages on {}.",
            "Please search for {}.",
            "Can you search for {}?",
            "I am looking for {}.",
            "Find something about {}.",
            "What can you find about {}?",
        ]
    ).format(subject)
    title = rng.choice(["All about {}", "A guide to {}", "{} explained", "The book of {}", "Ten {}"])
    title = title.format(subject)
    result = rng.choice(
        [{"title": title}, {"results": [title]}, {"title": title, "page": values.number(rng)}]
    )
    return Use(tool, question, [call(name, {key: subject})], [json.dumps(result)], f'I found "{title}".')


def order(rng: Random) -> Use:
    """Look up the state of one or two orders."""
    name = rng.choice(["get_order", "get_order", "order_status", "find_order", "lookup_order"])
    (key,) = keys(rng, "order_id id number order")
    tool = make_tool(name, "Look up an order.", {key: "integer"}, rng)
    numbers = [rng.randint(10, 9999) for _ in range(count(rng))]
    plural = "s" if len(numbers) > 1 else ""
    question = rng.choice(
        [
            f"Where is order{plural} {{}}?",
            f"What is the status of order{plural} {{}}?",
            f"Look up order{plural} {{}}.",
            f"Check order{plural} {{}}.",
            f"What about order{plural} {{}}?",
            f"Find order{plural} {{}}.",
            f"Show me order{plural} {{}}.",
        ]
    ).format(" and ".join(map(str, numbers)))
    states = [rng.choice(STATES) for _ in numbers]
    results = [rng.choice([json.dumps({"status": state}), state]) for state in states]
    answer = " ".join(f"Order {each} is {state}." for each, state in zip(numbers, states, strict=True))
    return Use(tool, question, [call(name, {key: each}) for each in numbers], results, answer)
