"""The commands, a module each: arguments in, one call, text or JSON out. `cli` puts them together."""
