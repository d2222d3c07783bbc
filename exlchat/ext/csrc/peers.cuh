// Words that cards send each other while each computes its part of a layer.
//
// A word carries the number of its exchange beside its 32 bits, so that both arrive together: there is no fence, no flag and
// nothing to clear. Cards send and never fetch; they look into memory of their own (or the machine's, where they do not reach
// each other). Two places by turns are enough for sums: who sends exchange n + 2 has all of n + 1, and who sent that had all
// of n. Of parts a card may only send; before its next exchange but one it hears of those that received, by another exchange
// (who draws tells all) or by a copy between the streams of both (decode/graphs.py).
#pragma once
#include "device.cuh"
#include "exlchat.h"

namespace exl {

constexpr int LOOKS = 1024;  // into a place, before it is asked how long that has taken

// One exchange as a thread sees it.
struct Exchange {
    const ExlPeers &peers;
    uint32_t tag;  // its number among all that have been

    __device__ __forceinline__ Exchange(const ExlPeers &peers, uint32_t tag) : peers(peers), tag(tag) {}

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
            sum = card == 0 ? part : sum + part;
        }
        return sum;
    }
};

// Behind wait_for_previous().
__device__ __forceinline__ uint32_t tag_of(const ExlPeers &peers, int number) { return produced(peers.state) + number + 1; }

// How to reach the others, and which exchange it is, in a block's shared memory: so that what ends it need not be waited for.
struct __align__(16) ExchangeInBlock {
    ExlPeers peers;
    uint32_t tag;

    // By all threads, before the previous kernel ends.
    __device__ __forceinline__ void copy(const ExlPeers *from) {
        static_assert(sizeof(ExlPeers) % 8 == 0, "");
        if (threadIdx.x < sizeof(ExlPeers) / 8)
            reinterpret_cast<uint64_t *>(&peers)[threadIdx.x] = __ldg(reinterpret_cast<const unsigned long long *>(from) + threadIdx.x);
    }
};

}  // namespace exl
