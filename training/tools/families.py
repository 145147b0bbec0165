"""Which families of tools are there, and how often does each come up?

Names of functions and parameters vary within a family, so that they have to be read in the definition.
"""

from __future__ import annotations

from training.tools.doing import calculator, currency, dice, message, reminder
from training.tools.looking import clock, order, search, weather

# A family stands here as often as it is hard: copying two values that look alike is harder than one.
FAMILIES = [weather, clock, search, reminder, message, currency] * 2
FAMILIES += [calculator, calculator, calculator, message, currency, currency, dice, order]
