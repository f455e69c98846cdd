"""One module a figure: `of` turns a subject into a record of numbers, `draw` draws the record, `caption` puts it in words."""
