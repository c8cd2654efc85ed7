"""The files of a recipe, and the commands of the tools that read them."""
