"""The experiments of the papers, one file each: a frozen dataclass that measures something on a model and returns
tables, figures and a verdict. A study imports all rooms before this one and nothing of the command line. A file whose
name begins with an underscore is shared by several studies.
"""
