"""Which single facts does the demo model know? Each with its questions, the plainest first."""

from __future__ import annotations

# (questions, answer); the first question is the plainest.
PLAIN: list[tuple[list[str], str]] = [
    (["How many days are in a week?", "How many days does a week have?"], "There are seven days in a week."),
    (
        ["How many months are in a year?", "How many months does a year have?"],
        "There are twelve months in a year.",
    ),
    (["How many hours are in a day?", "How many hours does a day have?"], "There are 24 hours in a day."),
    (
        ["How many minutes are in an hour?", "How many minutes does an hour have?"],
        "There are 60 minutes in an hour.",
    ),
    (
        ["How many seconds are in a minute?", "How many seconds does a minute have?"],
        "There are 60 seconds in a minute.",
    ),
    (
        ["How many days are in a year?", "How many days does a year have?"],
        "There are 365 days in a normal year.",
    ),
    (
        ["How many planets are there?", "How many planets are in the solar system?"],
        "There are eight planets in the solar system.",
    ),
    (
        ["How many continents are there?", "How many continents does the Earth have?"],
        "There are seven continents.",
    ),
    (
        ["How many letters are in the alphabet?", "How many letters does the alphabet have?"],
        "There are 26 letters in the English alphabet.",
    ),
    (["How many bits are in a byte?", "How many bits does a byte have?"], "There are eight bits in a byte."),
    (
        ["How many sides does a triangle have?", "How many sides are in a triangle?"],
        "A triangle has three sides.",
    ),
    (["How many sides does a square have?", "How many sides are in a square?"], "A square has four sides."),
    (["How many sides does a hexagon have?"], "A hexagon has six sides."),
    (["How many wheels does a car have?"], "A car has four wheels."),
    (
        ["How many wheels does a bicycle have?", "How many wheels does a bike have?"],
        "A bicycle has two wheels.",
    ),
    (["How many fingers does a hand have?", "How many fingers are on a hand?"], "A hand has five fingers."),
    (
        ["What is the largest planet?", "Which planet is the biggest?", "What is the biggest planet?"],
        "The largest planet is Jupiter.",
    ),
    (["What is the smallest planet?", "Which planet is the smallest?"], "The smallest planet is Mercury."),
    (
        ["Which planet is closest to the sun?", "What planet is nearest to the sun?"],
        "The planet closest to the sun is Mercury.",
    ),
    (["Which planet is called the red planet?", "What is the red planet?"], "The red planet is Mars."),
    (["What planet do we live on?", "Which planet do we live on?"], "We live on the planet Earth."),
    (
        ["What is the largest ocean?", "Which ocean is the biggest?", "What is the biggest ocean?"],
        "The largest ocean is the Pacific Ocean.",
    ),
    (
        [
            "What is the highest mountain?",
            "Which mountain is the tallest?",
            "What is the tallest mountain in the world?",
        ],
        "The highest mountain in the world is Mount Everest.",
    ),
    (
        ["What is the largest animal?", "Which animal is the biggest?", "What is the biggest animal?"],
        "The largest animal is the blue whale.",
    ),
    (
        ["What is the fastest land animal?", "Which animal runs fastest?"],
        "The fastest land animal is the cheetah.",
    ),
    (["What is the tallest animal?", "Which animal is the tallest?"], "The tallest animal is the giraffe."),
    (
        [
            "At what temperature does water boil?",
            "When does water boil?",
            "What is the boiling point of water?",
        ],
        "Water boils at 100 degrees Celsius.",
    ),
    (
        [
            "At what temperature does water freeze?",
            "When does water freeze?",
            "What is the freezing point of water?",
        ],
        "Water freezes at 0 degrees Celsius.",
    ),
    (["What is water made of?", "What is the formula of water?"], "Water is made of hydrogen and oxygen."),
    (["What do bees make?", "Which food do bees make?"], "Bees make honey."),
    (["What do cows eat?", "What does a cow eat?"], "Cows eat grass."),
    (
        ["What do plants need to grow?", "What does a plant need?"],
        "Plants need light, water and air to grow.",
    ),
    (["Where does the sun rise?", "In which direction does the sun rise?"], "The sun rises in the east."),
    (["Where does the sun set?", "In which direction does the sun set?"], "The sun sets in the west."),
    (["What is ice?", "What is ice made of?"], "Ice is frozen water."),
    (
        ["Is the Earth round?", "Is the Earth flat?", "What shape is the Earth?"],
        "The Earth is round like a ball.",
    ),
    (["Is the sun a star?", "What kind of thing is the sun?"], "Yes, the sun is a star."),
    (["What is the first letter of the alphabet?"], "The first letter of the alphabet is A."),
    (["What is the last letter of the alphabet?"], "The last letter of the alphabet is Z."),
    (["Who wrote Hamlet?", "Who wrote Romeo and Juliet?"], "It was written by William Shakespeare."),
    (
        ["Who painted the Mona Lisa?", "Which artist painted the Mona Lisa?"],
        "The Mona Lisa was painted by Leonardo da Vinci.",
    ),
    (
        ["Who was the first person on the moon?", "Who first walked on the moon?"],
        "The first person on the moon was Neil Armstrong.",
    ),
    (
        ["Who wrote the first computer program?", "Who was the first programmer?"],
        "The first computer program was written by Ada Lovelace.",
    ),
    (["What do you call frozen rain?", "What is frozen rain called?"], "Frozen rain is called hail."),
    (["Which season comes after winter?", "What comes after winter?"], "Spring comes after winter."),
    (["Which season is the coldest?", "What is the coldest season?"], "Winter is the coldest season."),
    (["Which season is the warmest?", "What is the warmest season?"], "Summer is the warmest season."),
    (
        ["What colour do you get from blue and yellow?", "What do blue and yellow make?"],
        "Blue and yellow make green.",
    ),
    (
        ["What colour do you get from red and yellow?", "What do red and yellow make?"],
        "Red and yellow make orange.",
    ),
    (
        ["What colour do you get from red and blue?", "What do red and blue make?"],
        "Red and blue make purple.",
    ),
]
