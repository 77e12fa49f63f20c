/* What a budget's decisions are made by. */

#pragma once
#include <stdint.h>

typedef struct {
    const double *sure, *accepted; /* calibration: confidences, and the shares of nodes that were accepted */
    long calibrated;
    const double *parents, *promised; /* confidences of expanded nodes, and the shares of their children */
    long known, children;
    const double *verify, *draft; /* seconds by the number of tokens of all rows */
} Yields;
