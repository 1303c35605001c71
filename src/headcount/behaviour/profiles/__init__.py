"""Head profiles: what each head attends to over example sentences (distances, parts of speech, relations, similar
heads) and attention maps of a few of them, as the report shows them.
"""
