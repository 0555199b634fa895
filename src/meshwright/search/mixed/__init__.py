"""Plans over several kinds of chips: an exact search by best-first branch and bound."""
