"""The three forms of a computation as pure data: graph, lowered graph, plan; and what they are made of."""
