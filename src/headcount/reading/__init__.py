"""Reading what users bring: lines, tables and treebanks of files, the tokenizer or image processor of a model, and text that it does not know."""
