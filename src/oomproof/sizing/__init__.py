"""How much memory will it need: of a script on a virtual GPU, of a model's files."""
