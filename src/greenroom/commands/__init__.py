"""Commands that the operator of a deployment needs, a module each."""
