"""Which sums can the demo model do? Small ones in words or signs, each with the one canonical answer."""

from __future__ import annotations

from random import Random

from training import facts
from training.phrasing import Exchange, vary, what_is

SIGNS: dict[str, list[str]] = {
    "plus": [" + ", "+", " plus "],
    "minus": [" - ", "-", " minus "],
    "times": [" * ", " x ", "*", " times "],
    "divided by": [" / ", "/", " divided by "],
}
REFUSAL = "I am sorry, I can only do sums with small numbers."


def solve(left: int, operation: str, right: int) -> int:
    """Return the result of a sum; a division must come out even."""
    if operation == "plus":
        return left + right
    if operation == "minus":
        return left - right
    if operation == "times":
        return left * right
    assert operation == "divided by"
    assert left % right == 0
    return left // right


def operands(rng: Random) -> tuple[int, str, int]:
    """Draw a sum within the range that the model is taught."""
    operation = rng.choice(["plus"] * 3 + ["minus"] * 4 + ["times"] * 2 + ["divided by"])
    if operation == "plus":
        top = rng.choice([10, 10, 20, 20, 20, 50])
        return rng.randint(0, top), operation, rng.randint(0, top)
    if operation == "minus":
        left = rng.randint(0, rng.choice([10, 10, 20, 20, 20, 50]))
        return left, operation, rng.randint(0, left if rng.random() < 0.9 else 20)
    left, right = rng.randint(0, 12), rng.randint(0, 12)
    if operation == "times":
        return left, operation, right
    right = max(right, 1)
    return left * right, operation, right


def phrase(left: int, operation: str, right: int, rng: Random) -> str:
    """Return a question for a sum."""
    if max(left, right) <= 12 and rng.random() < 0.12:
        return what_is(f"{facts.NUMBER_WORDS[left]} {operation} {facts.NUMBER_WORDS[right]}", rng)
    sign = f" {operation} " if rng.random() < 0.5 else rng.choice(SIGNS[operation])
    asked = f"{left}{sign}{right}"
    choice = rng.random()
    if choice < 0.5:
        return f"What is {asked}?"
    if choice < 0.65:
        return what_is(asked, rng)
    forms = [
        "How much is {}?",
        "Calculate {}.",
        "Compute {}.",
        "{} = ?",
        "{}=",
        "{}",
        "What does {} equal?",
        "What is {} equal to?",
        "Work out {}.",
        "What do you get for {}?",
        "Solve {}.",
        "What is the result of {}?",
    ]
    if operation == "plus" and choice > 0.88:
        return rng.choice(
            [
                f"Add {left} and {right}.",
                f"What is the sum of {left} and {right}?",
                f"How much is {left} and {right}?",
            ]
        )
    if operation == "times" and choice > 0.9:
        return rng.choice([f"Multiply {left} by {right}.", f"What is the product of {left} and {right}?"])
    if operation == "minus" and choice > 0.9:
        return rng.choice(
            [f"Subtract {right} from {left}.", f"What is the difference of {left} and {right}?"]
        )
    return rng.choice(forms).format(asked)


def beyond(rng: Random) -> Exchange:
    """A sum without a small whole answer: too large, a division with a rest, or one by zero."""
    operation = rng.choice(list(SIGNS))
    low = 13 if operation == "times" else 51
    large, other = rng.randint(low, 10 ** rng.randint(2, 5)), rng.randint(2, 10 ** rng.randint(1, 5))
    left, right = rng.choice([(large, other), (other, large)])
    answer = REFUSAL
    if operation == "divided by":
        left, right = rng.randint(1, 30), rng.randint(2, 12)
        left += 1 if left % right == 0 else 0
        answer = f"{left} divided by {right} is not a whole number."
        if rng.random() < 0.3:
            right, answer = 0, "No number can be divided by zero."
    return Exchange(vary(phrase(left, operation, right, rng), rng), answer)


def arithmetic(rng: Random) -> list[Exchange]:
    """A sum, now and then with a follow-up or one that is too large."""
    if rng.random() < 0.06:
        return [beyond(rng)]
    left, operation, right = operands(rng)
    out = [Exchange(vary(phrase(left, operation, right, rng), rng), state(left, operation, right))]
    while rng.random() < 0.2:
        left, operation, right = operands(rng)
        follow = rng.choice(["And {} {} {}?", "What about {} {} {}?", "And what is {} {} {}?"])
        out.append(Exchange(vary(follow.format(left, operation, right), rng), state(left, operation, right)))
    return out


def state(left: int, operation: str, right: int) -> str:
    """Return the answer sentence of a sum."""
    return f"{left} {operation} {right} is {solve(left, operation, right)}."


def comparison(rng: Random) -> list[Exchange]:
    """Which of two numbers is larger, what follows a number, and odd or even."""
    kind = rng.random()
    left, right = rng.sample(range(0, 100 if rng.random() < 0.3 else 20), 2)
    if kind < 0.4:
        word, pick = rng.choice([("larger", max), ("bigger", max), ("greater", max), ("smaller", min)])
        question = (
            f"Which number is {word}, {left} or {right}?"
            if rng.random() < 0.5
            else f"Which is {word}, {left} or {right}?"
        )
        value = pick(left, right)
        small = "smaller" if word == "smaller" else "larger"
        return [Exchange(vary(question, rng), f"{value} is {small} than {left + right - value}.")]
    if kind < 0.7:
        question = rng.choice([f"Is {left} even or odd?", f"Is {left} an even number?", f"Is {left} odd?"])
        return [Exchange(vary(question, rng), f"{left} is an {'odd' if left % 2 else 'even'} number.")]
    step, word = rng.choice([(1, "after"), (-1, "before")])
    question = rng.choice(["What number comes {} {}?", "Which number comes {} {}?", "What comes {} {}?"])
    return [
        Exchange(vary(question.format(word, left + 1), rng), f"{left + 1 + step} comes {word} {left + 1}.")
    ]
