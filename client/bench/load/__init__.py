"""How are requests sent at their times, and answers timed?"""
