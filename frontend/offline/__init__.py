"""The LLM class: a model in a Python script, without HTTP."""
