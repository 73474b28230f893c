// Advice to the system about memory that torch has allocated.

#include "rows.h"
#include "vector.h"

ANYMAX_EXPORT int64_t anymax_prefer_large_pages(char* memory, int64_t bytes) {
    anymax::prefer_large_pages(memory, bytes);
    return 0;
}
