"""One module a figure: `of` makes a record of numbers, `draw` draws it, `caption` puts it in words."""
