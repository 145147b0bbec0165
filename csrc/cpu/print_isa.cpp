// Prints the instruction set of this machine, for a build that is for it alone.
#include <cstdio>

#include "cpu/detect_isa.h"

int main() { std::fputs(splitserve::kIsaNames[static_cast<int>(splitserve::detect_isa())], stdout); }
