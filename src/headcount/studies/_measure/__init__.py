"""The measurements of the studies, one file each beside the study of the same name: with torch, without tables, sentences or figures."""
