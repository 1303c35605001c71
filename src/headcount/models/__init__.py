"""Live models of transformers: where their heads are (HeadMap), gates that scale heads (HeadGates), observation of what
heads compute, and inputs to try a model with. Nothing is patched for good. It imports core and runs.
"""
