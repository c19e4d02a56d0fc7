"""Random mutants of the pure cores: does any test notice when one small thing in them is wrong?"""
