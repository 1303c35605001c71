"""Head profiles: what each head attends to on example sentences, for the report."""
