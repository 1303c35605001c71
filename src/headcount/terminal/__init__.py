"""What verbs and studies share: their options, the words they say and show, progress, and the run folder they work in."""
