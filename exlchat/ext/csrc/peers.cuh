// Words that cards send each other while each computes its part of a layer.
//
// A word carries the number of its exchange beside its 32 bits, so that both arrive together: there is no fence, no flag and
// nothing to clear. Cards send and never fetch; they look into memory of their own (or the machine's, where they do not reach
// each other). Two places by turns are enough: who sends exchange n + 2 has all of n + 1, and who sent that had all of n.
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

constexpr int LOOKS = 1024;  // into a place, before it is asked how long that has taken

__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
__device__ __forceinline__ void send_word(uint64_t *to, uint64_t word) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t look(const uint64_t *at) {
    uint64_t word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
__device__ __forceinline__ uint32_t look(const uint32_t *at) {
    uint32_t word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

// One exchange as a thread sees it. Made behind wait_for_previous().
struct Exchange {
    const ExlPeers &peers;
    uint32_t tag;

    __device__ __forceinline__ Exchange(const ExlPeers &peers, int number)
        : peers(peers), tag(produced(peers.state) + number + 1) {}

    // Where in its place a card's words of this exchange begin.
    __device__ __forceinline__ size_t begin(int card) const {
        return ((size_t)(tag % 2) * peers.cards + card) * peers.words;
    }
    __device__ __forceinline__ void send(int to, int at, uint32_t bits) const {
        send_word(peers.outbox[to] + begin(peers.card) + at, (uint64_t)tag << 32 | bits);
    }
    __device__ __forceinline__ void send_all(int at, uint32_t bits) const {
        for (int card = 0; card < peers.cards; card++)
            if (card != peers.card) send(card, at, bits);
    }
    // What another card has sent, or after `patience` anything, and nobody of this card waits any more.
    __device__ __forceinline__ uint32_t receive(int from, int at) const {
        const uint64_t *place = peers.inbox + begin(from) + at;
        uint64_t word = look(place);
        unsigned long long since = 0;
        while ((uint32_t)(word >> 32) != tag) {
            for (int i = 0; i < LOOKS && (uint32_t)(word >> 32) != tag; i++) word = look(place);
            if ((uint32_t)(word >> 32) == tag || look(peers.state + 1)) break;
            const unsigned long long now = nanoseconds();
            if (since == 0) since = now;
            if (now - since < peers.patience) continue;
            *static_cast<volatile uint32_t *>(peers.state + 1) = 1;
            *static_cast<volatile uint32_t *>(peers.trouble) = from + 1;
            break;
        }
        return (uint32_t)word;
    }
    // Of all cards, in their order: the same on each to the last bit.
    __device__ __forceinline__ float sum(int at, float own) const {
        float sum = 0.f;
        for (int card = 0; card < peers.cards; card++) {
            const float part = card == peers.card ? own : __uint_as_float(receive(card, at));
            sum = card == 0 ? part : __fadd_rn(sum, part);
        }
        return sum;
    }
};

}  // namespace exl
