"""The kernels of drafters: which tokens stand behind those of a row, for a step to verify?"""
