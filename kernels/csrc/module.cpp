// The native module: one bind_* function an operation, each defined beside its kernel.
#include "bind.h"

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels of tallymill (arrays in, arrays out).";
  tallymill::bind_paths(m);
  tallymill::bind_nms(m);
  tallymill::bind_match(m);
  tallymill::bind_soft_nms(m);
  tallymill::bind_tally(m);
  tallymill::bind_count(m);
  tallymill::bind_rescore(m);
  tallymill::bind_select(m);
  tallymill::bind_candidates(m);
  tallymill::bind_masks(m);
  tallymill::bind_rle(m);
  tallymill::bind_panoptic(m);
  tallymill::bind_mask_iou(m);
}
