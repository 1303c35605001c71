"""The six papers, one file each: their experiments in order, each a study with the options that the paper used."""
