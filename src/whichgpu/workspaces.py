import msgspec
class Temporary(msgspec.Struct, frozen=True):
    bytes:int
    before_output:int=-1
    kept: str|None=None
RULES={"aten.addmm.default","aten.mm.default","aten.bmm.default","aten.baddbmm.default"}
def temporaries(op, capability):
    size=32<<20 if capability[0]==9 else 8519680
    return (Temporary(size,0,"cublas-"+("backward" if op.phase=="backward" else "forward")),)
