// What headers of newer GCC and glibc call and older ones do not have: here, so that one library runs on
// both.
//
// A wheel built with GCC 12 on glibc 2.36 then loads wherever glibc 2.28 and GCC 8's libstdc++ are
// (manylinux_2_28). Version scripts keep these symbols inside the library.

#include <new>
#include <sstream>

#if defined(__GLIBCXX__) && defined(__GLIBC__)

// glibc 2.32. False: there may be threads, so reference counts are always atomic.
extern "C" {
extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// libstdc++ of GCC 11 and, the constructor, of GCC 9.
namespace std {
[[noreturn]] void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
template std::basic_string<char> std::basic_stringbuf<char>::str() const&;
template std::basic_ostringstream<char>::basic_ostringstream();

#endif
