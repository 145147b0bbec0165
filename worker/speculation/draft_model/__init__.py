"""How does a small model foresee what another will sample?"""
