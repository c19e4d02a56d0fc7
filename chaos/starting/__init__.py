"""Starting nodes quickly: one process imports what a node needs, and forks them.

Begin in `starter`. May import the workbench; `forks` alone runs the command line, as its children are nodes.
"""
