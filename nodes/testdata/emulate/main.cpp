// Runs the launches that standard input lists on the memory that a file holds:
//
//   arena PATH BYTES          mapped at kBase, and written back
//   range FIRST LAST          bytes of the arena that kernels may read
//   launch LIBRARY GX GY BX BY SHARED LATE ARG...   an argument: p<byte of the arena>, z (null) or i<its bits>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <iostream>
#include <sstream>

#include "emulate.h"

constexpr uintptr_t kBase = 0x600000000000;

int main() {
    std::vector<emulate::Range> ranges;
    for (std::string line, word; std::getline(std::cin, line);) {
        std::istringstream in(line);
        in >> word;
        if (word == "arena") {
            size_t size;
            in >> word >> size;
            const int f = open(word.c_str(), O_RDWR);
            if (mmap(reinterpret_cast<void*>(kBase), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, f, 0) == MAP_FAILED) {
                perror("mmap");
                return 1;
            }
        } else if (word == "range") {
            emulate::Range r;
            in >> r.first >> r.last;
            ranges.push_back({kBase + r.first, kBase + r.last});
        } else if (word == "launch") {
            std::string library;
            emulate::Index grid, dim;
            unsigned shared;
            bool late;
            in >> library >> grid.x >> grid.y >> dim.x >> dim.y >> shared >> late;
            std::vector<uint64_t> values;
            while (in >> word) {
                const uint64_t v = word.size() > 1 ? strtoull(word.c_str() + 1, nullptr, 10) : 0;
                values.push_back(word[0] == 'p' ? kBase + v : v);
            }
            std::vector<void*> args;
            for (uint64_t& v : values) args.push_back(&v);
            void* so = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (!so) {
                fprintf(stderr, "%s\n", dlerror());
                return 1;
            }
            using Run = void(emulate::Index, emulate::Index, unsigned, bool, const std::vector<emulate::Range>&, void**, int);
            reinterpret_cast<Run*>(dlsym(so, "emulate_run"))(grid, dim, shared, late, ranges, args.data(), args.size());
        }
    }
}
