// Whether what a caller gives as a packed matrix or as a residual can be one.
#pragma once
#include <stdint.h>

#include "exlchat.h"

namespace exl {

// Copies go by 16 bytes.
inline bool aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline bool matrix_ok(const ExlMatrix &m) {
    int pieces = 0, word = 0, scale = 0;
    if (!aligned(m.words) || !aligned(m.scales)) return false;
    if (!m.words || !m.scales || !m.gather || m.section_count < 1 || m.section_count > EXL_MAX_SECTIONS) return false;
    if (m.features < 1 || m.stored < m.features || m.stored % 32 || m.stored > 65535 || m.column_tiles < 1) return false;
    for (int i = 0; i < m.section_count; i++) {
        const ExlSection &s = m.sections[i];
        const bool width = s.bits == 2 || s.bits == 3 || s.bits == 4 || s.bits == 5 || s.bits == 6 || s.bits == 8;
        const bool step = s.rows_per_scale == 32 || s.rows_per_scale == 64 || s.rows_per_scale == 128;
        if (!width || !step || (s.plain && s.bits != 4) || s.piece != pieces || s.word != word || s.pieces < 1) return false;
        // The last piece begins inside the matrix: x has zeros for one that ends beyond it.
        if (s.row % 32 || s.row < 0 || s.row >= m.stored || s.pieces > (m.stored - s.row + 127) / 128) return false;
        const int scale_bytes = (s.plain ? 40 : 10) * (128 / s.rows_per_scale);
        if (s.piece_words != 64 * s.bits || s.scale != scale || s.scale_words != (scale_bytes + 15) / 16 * 4) return false;
        pieces += s.pieces, word += s.pieces * s.piece_words, scale += s.pieces * s.scale_words;
    }
    return pieces == m.pieces && word == m.words_per_column && scale == m.scale_words_per_column;
}

inline bool residual_ok(const ExlResidual &r) {
    if (!r.hidden || !r.squares || (r.delta && (!r.scale || !aligned(r.squares)))) return false;
    for (const ExlNormCopy &copy : r.copies)
        if (copy.values && !copy.scatter) return false;
    return true;
}

}  // namespace exl
