# install.sh - what `make install` gives can be built against, in C, shared and static.
. tests/cli/common.bash
build=$(dirname "$Q")
if [ ! -e "$build/libquern.so" ] || [ ! -e "$build/libquern.a" ]; then
    echo "instrumented builds make no libraries: nothing to install"
    exit 0
fi
cmake --install "$build" --prefix "$T/usr" >"$T/out" 2>&1 || die "install"
"$T/usr/bin/quern" version | grep -q "quern 0" || die "the installed program"
test -s "$T/usr/share/man/man1/quern.1" || die "no manual page"
pc=$(find "$T/usr" -name quern.pc) lib=$(dirname "$(find "$T/usr" -name libquern.a)")
sed -i "s|^prefix=.*|prefix=$T/usr|" "$pc"
export PKG_CONFIG_PATH=$(dirname "$pc")
if command -v pkg-config >/dev/null; then
    flags=$(pkg-config --cflags --libs quern) || die "pkg-config"
else
    flags="-I$T/usr/include -L$lib -lquern"
fi
# shellcheck disable=SC2086
cc -std=c11 -Wall -Werror examples/generate.c $flags -o "$T/shared" >"$T/out" 2>&1 || die "shared"
cc -std=c11 -Wall -Werror -I"$T/usr/include" examples/generate.c "$lib/libquern.a" -lm -lpthread -ldl \
    -o "$T/static" >"$T/out" 2>&1 || die "static"
LD_LIBRARY_PATH=$lib "$T/shared" $TINY "Once upon a time" >"$T/a" || die "the shared example"
"$T/static" $TINY "Once upon a time" >"$T/b" || die "the static example"
cmp "$T/a" "$T/b" || die "shared and static differ"
[ "$(wc -c <"$T/a")" -gt 40 ] || die "no text"
if command -v c++ >/dev/null; then
    echo '#include <quern.h>
int main() { return qn_version()[0] != 48; }' >"$T/x.cc"
    c++ -Wall -Werror -I"$T/usr/include" "$T/x.cc" "$lib/libquern.a" -lm -lpthread -ldl -o "$T/cc" \
        >"$T/out" 2>&1 || die "C++"
    "$T/cc" || die "C++ program"
fi
mkdir "$T/project"
cp examples/generate.c "$T/project"
cat >"$T/project/CMakeLists.txt" <<'CM'
cmake_minimum_required(VERSION 3.20)
project(user C)
find_package(Quern 0.1 REQUIRED)
add_executable(a generate.c)
target_link_libraries(a quern::static)
add_executable(b generate.c)
target_link_libraries(b quern::quern)
CM
{ cmake -S "$T/project" -B "$T/project/b" -DCMAKE_PREFIX_PATH="$T/usr" &&
    cmake --build "$T/project/b"; } >"$T/out" 2>&1 || die "find_package"
"$T/project/b/a" $TINY "Once upon a time" | cmp - "$T/b" || die "the CMake example"
exit 0
