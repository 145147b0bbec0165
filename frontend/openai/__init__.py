"""The OpenAI schema and one handler file per endpoint family."""
