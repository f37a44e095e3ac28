// Declares the bind_* functions that module.cpp calls, and the array types that they take.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace tallymill {

// Arrays arrive checked by Python: NumPy arrays, C-contiguous, of exactly this type. Const means read only.
template <typename T>
using Vector = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Boxes = nanobind::ndarray<T, nanobind::shape<-1, 4>, nanobind::c_contig, nanobind::device::cpu>;
// The exception: rows and columns lie where their strides say.
template <typename T>
using Strided = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::device::cpu>;

void bind_paths(nanobind::module_& m);
void bind_nms(nanobind::module_& m);
void bind_match(nanobind::module_& m);
void bind_soft_nms(nanobind::module_& m);
void bind_tally(nanobind::module_& m);
void bind_count(nanobind::module_& m);
void bind_rescore(nanobind::module_& m);
void bind_select(nanobind::module_& m);
void bind_candidates(nanobind::module_& m);
void bind_masks(nanobind::module_& m);
void bind_rle(nanobind::module_& m);
void bind_panoptic(nanobind::module_& m);
void bind_mask_iou(nanobind::module_& m);

}  // namespace tallymill
