"""How are outputs held to a grammar, without a step waiting for it?"""
