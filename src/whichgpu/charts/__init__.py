"""Pictures of answers as PNG or SVG files: `whichgpu chart`, and the roofline of `whichgpu explain`.

Needs matplotlib, the extra `charts`, which is loaded when a picture is drawn and not before. Everything shown stands in the
records: this package places and labels. Colours are those of Okabe and Ito (2008), which colour-blind people tell apart, and never
say anything alone: marks differ in shape too. Labels stand beside what they name and do not overlap; one that has no room is
left out.
"""
