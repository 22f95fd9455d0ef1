# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Converts bindgen's assertions on Rust layouts to assertions for the C compiler: sizes of structures and offsets of
# their fields. Omits types and bit fields that have no name in C.

BEGIN {
	print "/* Made by layouts.awk. */"
}

/^pub (struct|union) / {
	type = $3
	kind[type] = $2
}

/bindgen_union_field/ {
	kind[type] = "union"
}

# The number may be on the line after the name.
match($0, /"(Size of|Offset of field:) [A-Za-z0-9_:]+"/) {
	what = substr($0, RSTART + 1, RLENGTH - 2)
}

what && match($0, /- [0-9]+usize/) {
	value = substr($0, RSTART + 2, RLENGTH - 7)
	is_size = what ~ /^Size/
	sub(/^(Size of|Offset of field:) /, "", what)
	split(what, path, "::")
	# bindgen appends an underscore to names that are Rust keywords.
	sub(/_$/, "", path[2])
	name = kind[path[1]] " " path[1]
	if (what ~ /__bindgen_|::_bitfield_|^possible_net_t|^netdevice_tracker/)
		;
	else if (is_size)
		print "static_assert(sizeof(" name ") == " value ");"
	else
		print "static_assert(offsetof(" name ", " path[2] ") == " value ");"
	what = ""
}
