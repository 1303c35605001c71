"""Reading what users bring: lines and tables of files, the tokenizer or image processor of a model, and text that it does not know."""
