#!/bin/sh
# Runs a CUDA compiler and keeps what it reports of each kernel (registers, spills) in <folder>/<source>.txt.
#   keep_report.sh <folder> nvcc ... -o kernels/norm.cu.o ...
folder=$1
shift
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
mkdir -p "$folder"
report=$folder/$(basename "$object" .cu.o).txt
"$@" 2>"$report.tmp"
status=$?
# The rest is for whoever builds: errors and warnings.
grep -v -e '^ptxas info' -e 'bytes stack frame' "$report.tmp" >&2
mv "$report.tmp" "$report"
exit $status
