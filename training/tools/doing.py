"""Which tools do something? Sums, reminders, messages, money, dice."""

from __future__ import annotations

import json
from random import Random

from training.numbers import solve
from training.tools import values
from training.tools.schema import Use, call, keys, make_tool

CALCULATORS = {"add": "plus", "multiply": "times", "subtract": "minus"}


def calculator(rng: Random) -> Use:
    """Ask for a sum that is too large to know."""
    name, operation = rng.choice(list(CALCULATORS.items()))
    left_key, right_key = keys(rng, "a x left first a", "b y right second b")
    kinds = {left_key: rng.choice(["integer", "number"]), right_key: rng.choice(["integer", "number"])}
    tool = make_tool(name, f"{name.capitalize()} two numbers.", kinds, rng)
    left, right = values.number(rng), values.number(rng)
    sign = {"plus": "+", "times": "*", "minus": "-"}[operation]
    forms = [
        f"What is {left} {operation} {right}?",
        f"What is {left} {sign} {right}?",
        f"Calculate {left} {operation} {right}.",
        f"How much is {left} {operation} {right}?",
        f"Compute {left} {sign} {right}.",
        f"{left} {operation} {right}",
        f"Work out {left} {operation} {right}.",
        f"Use the tool for {left} {operation} {right}.",
    ]
    forms += {
        "plus": [f"Add {left} and {right}.", f"What is the sum of {left} and {right}?"],
        "times": [f"Multiply {left} by {right}.", f"What is the product of {left} and {right}?"],
        "minus": [f"Take {right} from {left}.", f"Subtract {right} from {left}."],
    }[operation]
    result = solve(left, operation, right)
    answer = f"{left} {operation} {right} is {result}."
    shown = rng.choice([str(result), json.dumps({"result": result})])
    return Use(tool, rng.choice(forms), [call(name, {left_key: left, right_key: right})], [shown], answer)


def reminder(rng: Random) -> Use:
    """Set a reminder at a time of day."""
    name = rng.choice(["set_reminder", "set_reminder", "add_reminder", "remind_me", "create_reminder"])
    what, when = keys(rng, "text task message task", "time at time when")
    tool = make_tool(name, "Set a reminder.", {what: "string", when: "string"}, rng)
    errand, hour = values.errand(rng), values.hour(rng)
    question = rng.choice(
        [
            f"Remind me to {errand} at {hour}.",
            f"Remind me at {hour} to {errand}.",
            f"Set a reminder to {errand} at {hour}.",
            f"At {hour}, remind me to {errand}.",
            f"I have to {errand} at {hour}, remind me.",
            f"Please remind me to {errand} at {hour}.",
            f"Set a reminder at {hour} to {errand}.",
            f"Can you remind me to {errand} at {hour}?",
        ]
    )
    result = rng.choice(['{"status": "ok"}', "ok", '{"ok": true}', "done", '{"saved": true}'])
    answer = f"I will remind you to {errand} at {hour}."
    return Use(tool, question, [call(name, {what: errand, when: hour})], [result], answer)


def message(rng: Random) -> Use:
    """Send a short text to a person."""
    name = rng.choice(["send_email", "send_message", "send_message", "send_mail", "write_message"])
    whom, what = keys(rng, "to recipient name to person", "text message body message content")
    tool = make_tool(name, "Send a message to a person.", {whom: "string", what: "string"}, rng)
    person, note = values.person(rng), values.note(rng)
    question = rng.choice(
        [
            f'Send {person} the message "{note}".',
            f'Write to {person}: "{note}"',
            f"Write to {person}: {note}",
            f'Send "{note}" to {person}.',
            f'Tell {person} "{note}".',
            f"Send a message to {person}: {note}",
            f'Send an email to {person} saying "{note}".',
            f"Tell {person}: {note}",
            f'Email {person} "{note}".',
            f'{person} should read this: "{note}"',
            f'I want {person} to get the message "{note}".',
        ]
    )
    result = rng.choice(['{"status": "sent"}', "sent", '{"ok": true}', "ok"])
    return Use(
        tool, question, [call(name, {whom: person, what: note})], [result], f"I sent the message to {person}."
    )


def currency(rng: Random) -> Use:
    """Convert an amount of money."""
    name = rng.choice(["convert_currency", "convert_currency", "convert", "exchange"])
    amount_key, source_key, target_key = keys(
        rng, "amount value amount", "from source from_currency", "to target to_currency"
    )
    kinds = {amount_key: "number", source_key: "string", target_key: "string"}
    tool = make_tool(name, "Convert money.", kinds, rng)
    amount = values.number(rng)
    source, target = rng.sample(values.CURRENCIES, 2)
    question = rng.choice(
        [
            f"Convert {amount} {source} to {target}.",
            f"How much is {amount} {source} in {target}?",
            f"What is {amount} {source} in {target}?",
            f"Change {amount} {source} into {target}.",
            f"Exchange {amount} {source} for {target}.",
            f"I have {amount} {source}, how many {target} is that?",
            f"{amount} {source} to {target}",
            f"Turn {amount} {source} into {target}.",
            f"How much {target} is {amount} {source}?",
            f"Give me {target} for {amount} {source}.",
            f"What is the price in {target} of {amount} {source}?",
        ]
    )
    result = f"{values.number(rng)}.{rng.randint(1, 99):02d}".rstrip("0")
    shown = rng.choice([result, f'{{"amount": {result}}}', f'{{"result": {result}}}'])
    arguments: dict[str, object] = {amount_key: amount, source_key: source, target_key: target}
    return Use(tool, question, [call(name, arguments)], [shown], f"{amount} {source} is {result} {target}.")


def dice(rng: Random) -> Use:
    """Roll a die."""
    name = rng.choice(["roll_dice", "roll_dice", "roll", "roll_die"])
    (key,) = keys(rng, "sides num_sides sides faces")
    tool = make_tool(name, "Roll a die.", {key: "integer"}, rng)
    sides = rng.randint(2, 100)
    question = rng.choice(
        [
            f"Roll a die with {sides} sides.",
            f"Roll a dice with {sides} sides.",
            f"Throw a die with {sides} sides.",
            f"Roll a {sides} sided die.",
            f"Please roll a die that has {sides} sides.",
            f"Can you roll a die with {sides} sides?",
            f"Roll a d{sides}.",
        ]
    )
    rolled = rng.randint(1, sides)
    shown = rng.choice([str(rolled), json.dumps({"result": rolled}), json.dumps({"value": rolled})])
    return Use(tool, question, [call(name, {key: sides})], [shown], f"You rolled {rolled}.")
