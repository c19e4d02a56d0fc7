"""Starting nodes quickly."""
