"""What may a model write that is to call tools? Grammars of its format of calls, for llguidance."""
