"""How large a model a budget trains, and how long and at what cost a model trains."""
